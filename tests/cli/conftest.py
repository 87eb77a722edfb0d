from tests.client.fixtures import blue, fakes, green, key, operator, services, urls  # noqa: F401 - fixtures
