"""Profiles that AMD's tools write."""
