"""What the recorder asks of the operating system: processes, files, threads, /proc."""
