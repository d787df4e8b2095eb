"""What language-model agents ask through: a server of the Model Context Protocol over the public functions."""
