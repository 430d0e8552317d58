// SPDX-License-Identifier: GPL-2.0-only

// The path-classifying handler in Go, on net/http: the fourth seed's other side.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

var words = [4]string{"aeiou", "bcdfghjklmnpqrstvwxyz", "0123456789", "/-_.~"}

func classify(path string) string {
	var counts [4]int
	for i := 0; i < len(path); i++ {
		for index, word := range words {
			if strings.IndexByte(word, path[i]) >= 0 {
				counts[index]++
				break
			}
		}
	}
	return fmt.Sprintf("%d,%d,%d,%d", counts[0], counts[1], counts[2], counts[3])
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("{\"port\": %d, \"pid\": %d}\n", listener.Addr().(*net.TCPAddr).Port, os.Getpid())
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, classify(r.URL.Path))
	}
	fmt.Fprintln(os.Stderr, http.Serve(listener, http.HandlerFunc(handler)))
	os.Exit(1)
}
