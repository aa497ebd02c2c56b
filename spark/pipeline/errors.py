"""Errors of a pipeline. Each text is the one line to show."""


class PipelineError(Exception):
    """A pipeline that cannot run as it is described, or that failed."""


class SettingError(PipelineError):
    """A setting of the pipeline's file that is wrong, or does not fit what was found. The text begins with its name."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = tuple(setting.split("."))
        """Sections and key, to find the line in the file."""

    def __reduce__(self) -> tuple[type["SettingError"], tuple[str, str]]:
        setting = ".".join(self.setting)
        return SettingError, (setting, str(self).removeprefix(f"{setting}: "))


class AnotherDriver(PipelineError):
    """Another driver has committed the same micro-batch to the table."""


def reason_of(error: BaseException) -> str:
    """Return the line of an error that names the cause. For a failed call to Java this is Java's cause."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
