"""The public functions. The command line and the page call these same ones."""
