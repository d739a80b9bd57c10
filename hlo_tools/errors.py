"""The errors of this package: HLO that cannot be understood, and files that are not read."""


class HloError(ValueError):
    """Malformed, truncated or unsupported HLO; the message says what was got and what to do."""


class FileError(ValueError):
    """A file that is absent, no regular file, or over a limit; callers say which file."""
