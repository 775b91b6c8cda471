"""Laws of whole programs: merged products, folded weights, slices and concatenations."""
