"""The error that reading settings raises."""


class SettingsError(Exception):
    """A setting that cannot be used; the text is the one line to show."""
