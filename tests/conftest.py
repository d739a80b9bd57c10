"""Eight CPU devices for every test, set before JAX is imported."""

import os

from hypothesis import settings


os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
settings.register_profile("automap", deadline=None, derandomize=True)
settings.load_profile("automap")
