"""Keeps: database rows, blobs and log segments."""
