"""Tables of one trace or of many: by name or by SQL, computed in this process or in workers."""
