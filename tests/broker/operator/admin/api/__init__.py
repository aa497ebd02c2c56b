"""Tests of the JSON API of the admin port."""
