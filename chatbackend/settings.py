"""Settings, all of them from the environment; README lists every name. Nonsense ends the start with a sentence."""

from pathlib import Path

from chatbackend import environment
from chatbackend.embedded.paths import socket_dir
from chatbackend.environment import env

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = environment.state_dir(BASE_DIR)
SOCKET_DIR = socket_dir(STATE_DIR)

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = environment.secret_key(STATE_DIR)
SITE_NAME = env.str("SITE_NAME", default="chatbackend")
HOST = env.str("HOST", default="127.0.0.1")
PORT = environment.whole("PORT", 8000, 0, 65535)
ALLOWED_HOSTS = environment.hosts(HOST)
SIGNUP = environment.choice(
    "SIGNUP", "open" if environment.is_loopback(HOST) else "invite", ("open", "invite", "closed")
)

INSTALLED_APPS = [
    "chatbackend.embedded",
    "chatbackend.accounts",
    "slots",
    "conversations",
    "allauth",
    "allauth.account",
    "allauth.headless",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "chatbackend.urls"
ASGI_APPLICATION = "chatbackend.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"

# Sync code runs in ASGI_THREADS threads, each with at most one connection: the pool is never smaller than its users.
DATABASE_POOL = environment.whole("DATABASE_POOL", 12, 4, 500)
DATABASES = {
    "default": {
        **environment.database(SOCKET_DIR),
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 0,
    }
}
DATABASES["default"].setdefault("OPTIONS", {}).update(
    pool={"min_size": 1, "max_size": DATABASE_POOL, "timeout": 3}, connect_timeout=3
)

REDIS_URL = environment.redis_url(SOCKET_DIR)
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}}

# Leases. Heartbeat and time to live are checked together (slots.E001).
LEASE_TTL = environment.seconds("LEASE_TTL", 10)
LEASE_HEARTBEAT = environment.seconds("LEASE_HEARTBEAT", 3)
LEASE_IDLE_TTL = environment.seconds("LEASE_IDLE_TTL", 600)
LEASE_REAP_GRACE = environment.seconds("LEASE_REAP_GRACE", 10)
LLAMA_SERVERS = environment.words("LLAMA_SERVERS")
LLAMA_SILENCE = environment.seconds("LLAMA_SILENCE", 120)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "DEBUG" if DEBUG else "INFO"},
    "loggers": {"django": {"handlers": [], "level": "INFO", "propagate": True}},
}
