from hypothesis import settings

pytest_plugins = ["tests.support.running", "tests.support.stores"]

# A deadline for each example would be a timed assertion: this machine is shared.
settings.register_profile("chatmesh", deadline=None)
settings.load_profile("chatmesh")
