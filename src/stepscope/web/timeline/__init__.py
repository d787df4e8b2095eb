"""The timeline of the page: what is drawn at which zoom, and the bytes that are sent for it."""
