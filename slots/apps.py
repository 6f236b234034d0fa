from django.apps import AppConfig


class SlotsConfig(AppConfig):
    name = "slots"

    def ready(self) -> None:
        from slots import checks  # noqa: F401  registers
