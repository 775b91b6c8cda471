"""The programs of `bench gpu` in other libraries and languages, which are timed with ours."""
