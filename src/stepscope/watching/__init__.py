"""Watches a stream of cycles while a job runs."""
