"""What several readers need: sources of bytes, columns, spans, and the log of issues."""
