"""The HTTP API behind API Gateway (REST, payload v1): events, models, rules, answers and the OpenAPI document."""
