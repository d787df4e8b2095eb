"""One named table out of one trace or many: by name, by SQL, here or in other processes."""
