"""The URL of a log in Postgres: read for libpq, and shown without its password."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

__all__ = ["parsed", "shown"]

#: Used where the URL does not say otherwise: a server that is away must be noticed before its users notice.
CONNECTION: Final = {
    "connect_timeout": 2,
    "tcp_user_timeout": 5000,
    "keepalives_idle": 10,
    "client_encoding": "UTF8",
    "application_name": "causal-memory-policy",
}


def parsed(url: str) -> tuple[dict[str, Any], str | None]:
    """Return what psycopg connects with, and the schema; no message holds the URL, which may hold a password."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    base, _, query = url.partition("?")
    fields = [field for field in query.split("&") if field]
    schemas = [unquote(field[7:]) for field in fields if field.startswith("schema=")]
    rest = "&".join(field for field in fields if not field.startswith("schema="))
    try:
        given = conninfo_to_dict(f"{base}?{rest}" if rest else base)
    except psycopg.Error:
        raise ValueError(
            "this is no URL of a Postgres database; write postgresql://user:password@host:port/database, with special "
            "characters of the password percent-encoded"
        ) from None
    return {**CONNECTION, **given}, (schemas[-1] or None) if schemas else None


def shown(options: Mapping[str, Any], schema: str | None) -> str:
    """Return where the log lies, without the password."""
    user, host, port, name = (options.get(key, "") for key in ("user", "host", "port", "dbname"))
    place = f"{user}@" * bool(user) + str(host) + f":{port}" * bool(port)
    return f"postgresql://{place}/{name}" + f"?schema={schema}" * bool(schema)
