// SPDX-License-Identifier: GPL-2.0-only

// The path-classifying handler in Go, on net/http: the fourth seed's other side.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

var words = [4]string{"get", "python", "benchmarks", "classification"}

// near returns the number of letters of word that differ from character by one at most.
func near(character byte, word string) int {
	count := 0
	for i := 0; i < len(word); i++ {
		difference := int(word[i]) - int(character)
		if -1 <= difference && difference <= 1 {
			count++
		}
	}
	return count
}

// A classifier counts, for each word, its letters that are near to the characters of one path.
type classifier struct {
	counts [4]int
	total  int
}

func (c *classifier) feed(character byte) {
	for index, word := range words {
		found := near(character, word)
		c.counts[index] += found
		c.total += found
	}
}

func (c *classifier) answer() string {
	return fmt.Sprintf("%d,%d,%d,%d,%d", c.counts[0], c.counts[1], c.counts[2], c.counts[3], c.total)
}

func classify(path string) string {
	classifier := &classifier{}
	for i := 0; i < len(path); i++ {
		classifier.feed(path[i])
	}
	return classifier.answer()
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
