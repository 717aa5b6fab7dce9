"""Decisions without a database: retry delays, failures, selection and admission."""
