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
HOST = env.str("HOST", default="").strip() or "127.0.0.1"
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
    "csp",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "chatbackend.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "chatbackend.failures.FailuresMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "chatbackend.accounts.answers.AnswersMiddleware",
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
                "chatbackend.pages.site",
            ]
        },
    }
]
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "chatbackend" / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 0  # asked again each time (304): modules of two releases must not mix in one page
LANGUAGE_CODE = "en-us"
TIME_ZONE = environment.time_zone("TIME_ZONE", "UTC")
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"

# After an outage the pool would try again ever more seldom, minutes apart; one that gave up tries on the next request.
# In a web process half of it is for the requests that are handled at once, half for the threads of websockets and
# streams, and two are for who sends long files: whoever is at work has a connection, and who waits, waits for no pool.
DATABASE_POOL = environment.whole("DATABASE_POOL", 16, 4, 500)
REQUESTS_AT_ONCE = DATABASE_POOL // 2 - 1
ASYNC_THREADS = DATABASE_POOL - 2 - REQUESTS_AT_ONCE
DATABASES = {
    "default": {
        **environment.database(SOCKET_DIR),
        "ENGINE": "chatbackend.postgresql",
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 0,
    }
}
_wished = DATABASES["default"].setdefault("OPTIONS", {})
_wished.update(
    pool={"min_size": 1, "max_size": DATABASE_POOL, "timeout": 3, "reconnect_timeout": 0.5},
    connect_timeout=3,
    # What is prepared (slots.statements; Django's own queries never are) finds its rows by key, whatever the values:
    # planned once, not at each call.
    prepare_threshold=5,
    options=f"{_wished.get('options', '')} -c plan_cache_mode=force_generic_plan".strip(),
)

REDIS_URL = environment.redis_url(SOCKET_DIR)
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        # A Valkey that hangs counts as away, like one that is gone.
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": 5, "socket_connect_timeout": 2}]},
    }
}
CACHES = {
    "default": {
        "BACKEND": "chatbackend.cache.CacheOrNothing",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"socket_timeout": 2, "socket_connect_timeout": 2},
    }
}

# Addresses and networks of proxies whose X-Forwarded-* headers are believed.
TRUSTED_PROXIES = environment.networks("TRUSTED_PROXIES")
CSRF_FAILURE_VIEW = "chatbackend.accounts.pages.signing_in.csrf_failed"
CSRF_TRUSTED_ORIGINS = [f"https://{name}" for name in environment.words("ALLOWED_HOSTS")]
SESSION_ENGINE = "chatbackend.accounts.sessions"
SESSION_COOKIE_AGE = 30 * 24 * 3600
APPEND_SLASH = False  # a redirected POST would lose its body; the 404 names the address with its slash

# Accounts: one session store for cookie, X-Session-Token and websocket. No mail is sent.
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
ACCOUNT_ADAPTER = "chatbackend.accounts.adapter.Adapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*"]
ACCOUNT_SIGNUP_FORM_CLASS = "chatbackend.accounts.signup.SignupForm"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_PREVENT_ENUMERATION = False
ACCOUNT_SESSION_REMEMBER = True
HEADLESS_ONLY = True
HEADLESS_CLIENTS = ("app", "browser")
HEADLESS_SERVE_SPECIFICATION = True
HEADLESS_SPECIFICATION_TEMPLATE_NAME = None  # its pages load from a CDN

LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = LOGOUT_REDIRECT_URL = "/"

# Everything a page needs is a file of ours, nothing is inline. An image's address can carry text away: none is loaded
# from elsewhere, whatever a model writes.
_OURS = ["'self'"]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": _OURS,
        "style-src": _OURS,
        "font-src": _OURS,
        "img-src": [*_OURS, "data:"],
        "connect-src": _OURS,
        "form-action": _OURS,
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "conversations.api.authentication.SessionToken",
        "conversations.api.authentication.SessionCookie",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["conversations.api.parsers.JsonBody"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "conversations.api.errors.answer",
}
SPECTACULAR_SETTINGS = {
    "TITLE": SITE_NAME,
    "DESCRIPTION": "Many people, one llama-server. Sign up and in at `/_allauth/` (`/_allauth/openapi.json`).",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SERVE_PERMISSIONS": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {"GenerationStatus": "conversations.models.Generation.Status"},
}

# Leases. Heartbeat and time to live are checked together (slots.E001).
LEASE_TTL = environment.seconds("LEASE_TTL", 10)
LEASE_HEARTBEAT = environment.seconds("LEASE_HEARTBEAT", 3)
LEASE_IDLE_TTL = environment.seconds("LEASE_IDLE_TTL", 600)
LEASE_REAP_GRACE = environment.seconds("LEASE_REAP_GRACE", 10)
# The queue: answers of one person that are written at once and that wait, and what waits of everybody together.
QUEUE_RUNNING_PER_PERSON = environment.whole("QUEUE_RUNNING_PER_PERSON", 2, 1)
QUEUE_WAITING_PER_PERSON = environment.whole("QUEUE_WAITING_PER_PERSON", 10, 1)
QUEUE_LENGTH = environment.whole("QUEUE_LENGTH", 500, 1)
# Whether models name conversations after their first answer; else they are called by their first words.
TITLES = environment.choice("TITLES", "on", ("on", "off")) == "on"
LLAMA_SERVERS = environment.words("LLAMA_SERVERS")
LLAMA_PARKED = environment.whole("LLAMA_PARKED", 32, 0, 1000)
LLAMA_SILENCE = environment.seconds("LLAMA_SILENCE", 120)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{levelname} {name}: {message}", "style": "{"}},
    "filters": {
        "away": {"()": "chatbackend.failures.WithoutTraceback"},
        "secrets": {"()": "chatbackend.accounts.links.WithoutSecrets"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["away", "secrets"]}},
    "root": {"handlers": ["stderr"], "level": "DEBUG" if DEBUG else "INFO"},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        "django.request": {"level": "ERROR"},  # the web process logs every request; errors come with their traceback
        "asyncio": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
    },
}
