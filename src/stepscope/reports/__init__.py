"""Which tables stand together for a reader: `model` is the value, each other module fills one."""
