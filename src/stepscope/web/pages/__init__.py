"""The pages: each turns the values of a session into HTML."""
