"""Reports for people and machines: text, plain values for JSON and YAML, JUnit, HTML (pure)."""
