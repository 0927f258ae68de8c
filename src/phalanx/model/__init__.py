"""Plain dataclasses, enums and reasons that every room shares. Imports nothing of ours."""
