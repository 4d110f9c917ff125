"""Reports of a plan: as text, pictures, one HTML page and cost estimates."""
