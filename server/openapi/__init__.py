"""The OpenAPI document at /openapi.json: what every endpoint takes and answers."""
