"""Builders and expectations: a public test kit."""
