"""The error that reading settings raises."""


class SettingsError(Exception):
    """A setting is invalid. The text is the one line to show."""
