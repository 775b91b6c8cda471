"""Synthesis of laws from ops alone, by enumeration and equality saturation, and minimization of rule files."""
