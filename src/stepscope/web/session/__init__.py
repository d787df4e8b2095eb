"""What the page has opened: one session for each server, and the workers that compute for it."""
