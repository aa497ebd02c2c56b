"""Makes a folder a package."""
