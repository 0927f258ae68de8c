"""Translates: one servicer module per noun. Authenticates, checks, translates. Decides nothing."""
