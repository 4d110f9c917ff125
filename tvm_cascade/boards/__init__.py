"""Machines that images are built for: boards by name (`data/`, one JSON file each), boards of a user, cores as targets."""
