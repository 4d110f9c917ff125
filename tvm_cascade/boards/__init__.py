"""Machines for images: boards by name (`data/`, one JSON file each), a user's boards, cores as targets."""
