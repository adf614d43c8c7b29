"""The type of the context that grpc gives to every handler."""

from __future__ import annotations

import grpc.aio

CallContext = grpc.aio.ServicerContext[object, object]
"""Our own code decodes requests, and may encode answers, so grpc knows neither type. A call without
a deadline has None as its ``time_remaining``, whatever grpc's stubs say."""
