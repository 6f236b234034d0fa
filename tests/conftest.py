pytest_plugins = ["tests.llama", "tests.stack", "tests.web"]
