"""What all tests share: the fixtures that start services and write tiny models."""

pytest_plugins = ["tests.e2e.plugin"]
