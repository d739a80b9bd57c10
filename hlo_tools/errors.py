"""The one error of this package: HLO that cannot be read or understood."""


class HloError(ValueError):
    """Malformed, truncated or unsupported HLO; the message says what was got and what to do."""
