"""What goes over the wire: Kubernetes kinds in use, Fairlead's own kinds, quantities, names,
errors.

Every type is a frozen `msgspec.Struct` that holds the fields Fairlead reads; unknown fields are
ignored on decoding. A typed object is therefore never written back whole: writes are patches that
name only the fields they own (`fairlead.runtime.client`), so what we do not know survives.
"""
