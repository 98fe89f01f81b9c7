//go:build debian

package main

import _ "osmosis/debian"
