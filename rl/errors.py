"""The error classes of the agents; callers turn them into their own."""


class RlError(Exception):
    """Root of all errors raised on purpose here."""


class ConfigError(RlError):
    """A configuration of an agent that is not possible."""


class CheckpointError(RlError):
    """A checkpoint that is absent, malformed, or of another run."""
