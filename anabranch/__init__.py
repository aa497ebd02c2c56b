"""The modules that Python programs import of Anabranch."""
