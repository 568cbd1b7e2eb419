"""Inputs that are tables: CSV, TSV, Parquet and Arrow.

Which rows are tasks belongs in `tasks`, and how columns become fields in `collecting/data`.
"""
