"""Who is measured: one file each. `peer.py` says what a peer is."""
