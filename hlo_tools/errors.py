"""The errors of this package: HLO that cannot be read or understood, files that are not read at all."""


class HloError(ValueError):
    """Malformed, truncated or unsupported HLO; the message says what was got and what to do."""


class FileError(ValueError):
    """A file that is absent, no regular file, or over a limit; callers put its name before the message."""
